import torch, sys, math
torch.set_num_threads(1)
n=int(sys.argv[1])
def run(K, T, eps, mem, slow, tol=1e-5, maxit=300, first=4):
    n=K.shape[0]; b=torch.zeros(n); pts=[];st=[]; last=float('inf'); errs=[]
    for t in range(1,maxit+1):
        kv=K@b.exp(); a=-kv.log(); ktu=K.T@a.exp(); g=-ktu.log()
        sums=(b.exp()*ktu); err=(sums*torch.expm1(g-b).abs()).sum(); mass=sums.sum()
        p=(a+b).exp()*K.diagonal()
        unit=(1-p).abs().sum()+(mass-p.sum()).clamp(min=0)
        if err<=max(tol*unit, 1.19e-7*mass*(4+a.abs().max()+b.abs().max())): return t
        rate=float(err)/last; last=float(err)
        f=g-b
        f=f/(1-p*p).clamp(min=1e-4)
        f=f-f.mean()
        if rate>2: pts.clear(); st.clear(); b=g; continue
        pts.append(b+f); st.append(f); del pts[:-mem], st[:-mem]
        if rate>slow and len(pts)>=2 and t>=first:
            F=torch.stack(st).double(); G=F@F.T; G=G/G.diagonal().mean(); G.diagonal().add_(1e-10)
            w=torch.linalg.solve(G,torch.ones(len(st),dtype=torch.float64)); w=(w/w.sum()).float()
            b=w@torch.stack(pts)
        else: b=b+f
    return maxit
for s in (0.5,1,1.5,2):
  torch.manual_seed(0)
  z1=torch.randn(n,128); z2=(z1+s*torch.randn(n,128))
  C=torch.nn.functional.normalize(z1)@torch.nn.functional.normalize(z2).T
  for eps in (0.05,0.03):
    K=((C)/eps).exp()
    print(s,eps,[(m,sl,run(K,None,eps,m,sl)) for m,sl in ((2,9),(2,.5),(4,.5),(6,.5),(6,.7),(6,.3),(3,.3))],flush=True)
