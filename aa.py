import torch, gcalign, sys
torch.set_num_threads(1)
import gcalign.solvers.anderson as A
from gcalign.solvers import scaling as S
n=int(sys.argv[1])
torch.manual_seed(0)
z1=torch.randn(n,128); z2=(z1+torch.randn(n,128))
for eps in (0.1,0.05,0.03):
  for mem in (0,4,6,10):
    A.MEMORY=mem
    if mem==0:
        import gcalign.proximal as P; P._LONG=10**9
    else: P._LONG=20
    p=gcalign.method("gca-ince",eps=eps,iterations=3000,tol=1e-5).plan(z1,z2); print(eps,mem,p.iterations,p.converged, flush=True)
