import torch, gcalign, sys
torch.set_num_threads(1)
torch.manual_seed(0)
z1=torch.randn(50,8,dtype=torch.float64); z2=z1+0.5*torch.randn(50,8,dtype=torch.float64)
for name in gcalign.methods.names():
  if name in("supcon",): continue
  for layout in ("cross","joint"):
    for eps in (0.5,0.05):
      for it in (7,1000):
        out=[]
        for kw in ({"gradient":"unrolled"},{}, {"block":13}):
            a,b=z1.clone().requires_grad_(),z2.clone().requires_grad_()
            k={"eps":eps} 
            try: c=gcalign.method(name,layout=layout,iterations=it,tol=1e-9,**k,**kw) 
            except Exception as e: print(name,layout,repr(e)); break
            l=c(a,b); l.backward(); out.append((l.item(),a.grad,b.grad))
        else:
            d=[max(abs(o[0]-out[0][0])/(1e-12+abs(out[0][0])),((o[1]-out[0][1]).norm()/out[0][1].norm()).item(),((o[2]-out[0][2]).norm()/out[0][2].norm()).item()) for o in out[1:]]
            print(name,layout,eps,it,["%.1e"%x for x in d], "<<<<" if max(d)>1e-6 else "")
