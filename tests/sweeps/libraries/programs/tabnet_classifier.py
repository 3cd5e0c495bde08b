"""TabNet trained on a table."""

import numpy as np
from pytorch_tabnet.tab_model import TabNetClassifier

random = np.random.RandomState(0)
table = random.rand(64, 6).astype(np.float32)
labels = (table[:, 0] > table[:, 1]).astype(np.int64)
model = TabNetClassifier(n_d=4, n_a=4, n_steps=2, seed=1, verbose=0, device_name="cpu")
model.fit(table, labels, max_epochs=2, batch_size=32, virtual_batch_size=16, drop_last=False)
print(model.predict_proba(table[:4]))
print(model.feature_importances_)
