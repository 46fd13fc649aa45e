"""Lightning's Trainer: a module, validation each epoch with metrics over all ranks, checkpoints."""

import logging
import warnings

import fingerprint
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def training_step(self, batch, _number):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _number):
        outputs = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(outputs, batch[1]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)]


def main():
    lightning.seed_everything(3, verbose=False)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)))
    test = TensorDataset(torch.randn(40, 20), torch.randint(0, 4, (40,)))
    model = Classifier()
    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(dirpath="lightning", monitor="val_loss")
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, gradient_clip_val=1.0,
                                accumulate_grad_batches=2, callbacks=[checkpoints], logger=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(data, batch_size=10, shuffle=True), DataLoader(test, batch_size=10))
    fingerprint.say(model)


if __name__ == "__main__":
    main()
