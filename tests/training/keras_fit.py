"""A Keras script with `compile` and `fit`, as users have it, and the three lines of clew."""

import sys

import clew

here = clew.distributed.setup(sys.argv[1], threads=1)
import keras  # noqa: E402
import numpy as np  # noqa: E402

keras.utils.set_random_seed(3 + here.rank)  # the ranks start with different weights; those of rank 0 count
rng = np.random.default_rng(0)
x = rng.normal(size=(99, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
if "different" in sys.argv and here.rank:
    x = x + 1
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(8, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01)),
        keras.layers.BatchNormalization(),
        keras.layers.Activation("tanh"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model = clew.distributed.wrap(model)
loss = keras.losses.BinaryCrossentropy(reduction="sum" if "sum" in sys.argv else "sum_over_batch_size")
model.compile(optimizer=keras.optimizers.Adam(0.05), loss=loss, metrics=["accuracy", "auc"])
history = model.fit(
    x[:81],
    y[:81],
    batch_size=16,  # the last batch has one sample: a rank has none
    epochs=3,
    validation_data=(x[81:], y[81:]),
    callbacks=[keras.callbacks.EarlyStopping("loss", patience=5)],
    sample_weight=np.linspace(0.5, 1.5, 81),
    verbose=0,
)
if here.rank == 0:
    np.savez(sys.argv[2], *model.get_weights(), **{f"log_{name}": value for name, value in history.history.items()})
    model.save(sys.argv[2] + ".keras")
    loaded = keras.models.load_model(sys.argv[2] + ".keras")
    assert np.allclose(loaded(x[:5]).detach(), model(x[:5]).detach())
