import torch, gcalign, sys
torch.set_num_threads(1)
import gcalign.proximal as P
n=int(sys.argv[1])
for s in (0.5,1,1.5,2,3,100):
  torch.manual_seed(0)
  z1=torch.randn(n,128); z2=(z1+s*torch.randn(n,128))
  for eps in (0.1,0.05):
    r=[]
    for long in (10**9,20):
        P._LONG=long
        p=gcalign.method("gca-ince",eps=eps,iterations=1000,tol=1e-5).plan(z1,z2); r.append(p.iterations)
    print(s,eps,r, "acc %.3f"%(p.log.argmax(1)==torch.arange(n)).float().mean(), "diag %.4f"%p.matrix.diagonal().mean(), flush=True)
