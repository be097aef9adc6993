"""Accelerate: prepare model, optimiser and data. The criterion needs no preparation, and joins the batches itself.

accelerate launch examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from digits import Pairs, accuracy, encoder

import gcalign


def main(steps: int = 200) -> list[float]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model, criterion = encoder(), gcalign.method("gca-uot", eps=0.2)
    loader = torch.utils.data.DataLoader(Pairs(), batch_size=128, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    losses: list[float] = []
    while len(losses) < steps:
        for batch in loader:
            loss = criterion(*model(torch.cat([batch["view1"], batch["view2"]])).chunk(2))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    score = accuracy(accelerator.unwrap_model(model))
    accelerator.print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, accuracy of 5 nearest neighbours {score:.3f}")
    return losses


if __name__ == "__main__":
    main()
