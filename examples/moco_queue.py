"""A momentum encoder and a queue of its keys, as in MoCo, for a GCA method.

python examples/moco_queue.py
"""

import copy

import torch
from digits import accuracy, batches, encoder

import gcalign


def main(steps: int = 200) -> list[float]:
    torch.manual_seed(0)
    model, criterion = encoder(), gcalign.method("gca-ince", eps=0.2)
    momentum, queue = copy.deepcopy(model).requires_grad_(False), gcalign.Queue(size=512, dim=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for view1, view2 in batches(steps):
        keys = momentum(view2)
        loss = criterion(model(view1), keys, queue=queue)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.push(keys)  # after the loss: a key is no negative of its own query
        for slow, fast in zip(momentum.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast.detach(), 0.05)
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, accuracy of 5 nearest neighbours {accuracy(model):.3f}")
    return losses


if __name__ == "__main__":
    main()
