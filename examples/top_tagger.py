"""A recipe in thirty lines: top quarks from the momenta of jets.

clew prepare top_tagger.py --input events.h5 --output dataset
clew train top_tagger.py --dataset dataset
"""

import clew


class TopTagger(clew.Recipe):
    class Config(clew.Section):
        hidden: int = 32  # --set hidden=64, or a line in a YAML file

    def prepare(self, events):  # events to samples: NumPy, a whole chunk at once
        jets = events.ragged("pt")  # ragged: every event has its own number of jets
        features = {"x": [[len(pt), pt.sum(), pt.max(initial=0)] for pt in jets], "top": events["top"]}
        return clew.Table(features)

    def model(self):
        from torch import nn

        return nn.Sequential(nn.Linear(3, self.config.hidden), nn.ReLU(), nn.Linear(self.config.hidden, 2))

    def forward(self, model, batch):
        return model(batch["x"].float())

    def loss(self, outputs, batch):
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, batch["top"], reduction="none")  # one value per event: clew applies event weights

    def metrics(self, samples, outputs, objects):
        return {"accuracy": clew.metrics.Ratio.of(outputs["output"].argmax(axis=1) == samples["top"], samples.weights)}
