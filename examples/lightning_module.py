"""Lightning: the criterion is a member of the module. Under DDP it joins the batches of all processes by itself.

python examples/lightning_module.py
"""

import lightning
import torch
from digits import Pairs, accuracy, encoder
from torch import Tensor

import gcalign


class Contrastive(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.criterion = encoder(), gcalign.method("gca-uot", eps=0.2)
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss = self.criterion(self.encoder(batch["view1"]), self.encoder(batch["view2"]))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(steps: int = 200) -> list[float]:
    lightning.seed_everything(0, verbose=False)
    module = Contrastive()
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(Pairs(), batch_size=128, shuffle=True, drop_last=True))
    losses = module.losses
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, accuracy of 5 nearest neighbours {accuracy(module.encoder):.3f}")
    return losses


if __name__ == "__main__":
    main()
