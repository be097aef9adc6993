import torch, gcalign, time, sys, statistics as st
import torch.nn.functional as F
torch.set_num_threads(int(sys.argv[2]) if len(sys.argv)>2 else 1)
n=int(sys.argv[1]); D=int(sys.argv[3]) if len(sys.argv)>3 else 128
torch.manual_seed(0)
z1=torch.randn(n,D,requires_grad=True); z2=(z1.detach()+torch.randn(n,D)).requires_grad_()
def eager(eps):
    def f():
        x,y=F.normalize(z1),F.normalize(z2)
        return F.cross_entropy(x@y.T/eps, torch.arange(n))
    return f
def ours(name,**k):
    c=gcalign.method(name,**k)
    return lambda: c(z1,z2)
cases={}
for eps in (0.5,0.1,0.05):
    cases[f"eager {eps}"]=eager(eps)
    cases[f"ince {eps}"]=ours("ince",eps=eps)
    cases[f"gca-ince {eps}"]=ours("gca-ince",eps=eps,iterations=1000,tol=1e-5)
cases["gca-uot .1"]=ours("gca-uot",eps=.1,iterations=1000,tol=1e-5)
cases["gca-rince .5"]=ours("gca-rince",eps=.5,iterations=10,tol=0,gradient="truncated")
T={k:[] for k in cases}
for r in range(int(sys.argv[4]) if len(sys.argv)>4 else 5):
    for k,f in cases.items():
        z1.grad=z2.grad=None
        t=time.perf_counter(); l=f(); t2=time.perf_counter(); l.backward(); t3=time.perf_counter()
        del l
        T[k].append((t3-t,t2-t))
base=st.median(x[0] for x in T["eager 0.5"][1:])
for k,v in T.items():
    m=st.median(x[0] for x in v[1:]); fw=st.median(x[1] for x in v[1:])
    print(f"{k:15s} {m*1e3:8.1f} ms  fwd {fw*1e3:8.1f}  x{m/base:.2f}")
for eps in (.5,.1,.05):
    p=gcalign.method("gca-ince",eps=eps,iterations=1000,tol=1e-5).plan(z1,z2); print(eps,p.iterations,p.converged,p.row_error.item(),p.column_error.item())
