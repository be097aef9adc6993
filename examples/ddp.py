"""Several GPUs: your own encoder and your own loader under DistributedDataParallel.

torchrun --standalone --nproc-per-node=2 examples/ddp.py

Each process has a part of the batch. The criterion joins the parts, so loss and gradient are those of the whole batch.
"""

import os

import torch
import torch.distributed as dist
from digits import Pairs, accuracy, encoder
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import gcalign


def main(steps: int = 60) -> list[float]:
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(encoder().to(device))
    criterion = gcalign.method("ince", eps=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = DistributedSampler(Pairs(), drop_last=True)
    loader = DataLoader(Pairs(), batch_size=128 // dist.get_world_size(), sampler=sampler, drop_last=True)
    torch.manual_seed(dist.get_rank())  # other random views in each process
    losses, epoch = [], 0
    while len(losses) < steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            views = torch.cat([batch["view1"], batch["view2"]]).to(device)  # one forward pass, as DDP expects
            loss = criterion(*model(views).chunk(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epoch += 1
    if dist.get_rank() == 0:
        after = accuracy(model.module.cpu())
        print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, accuracy of 5 nearest neighbours {after:.3f}")
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
