"""Plain PyTorch: the criterion is a module, called with the embeddings of two views.

python examples/plain_pytorch.py
"""

import torch
from digits import accuracy, batches, encoder

import gcalign


def main(steps: int = 200) -> list[float]:
    torch.manual_seed(0)
    model, criterion = encoder(), gcalign.method("gca-uot", eps=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for view1, view2 in batches(steps):
        loss = criterion(model(view1), model(view2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, accuracy of 5 nearest neighbours {accuracy(model):.3f}")
    return losses


if __name__ == "__main__":
    main()
