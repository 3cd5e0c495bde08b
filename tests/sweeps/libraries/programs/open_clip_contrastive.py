"""A tiny CLIP of open_clip with its contrastive loss."""

import torch
from open_clip.loss import ClipLoss
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

torch.manual_seed(0)
model = CLIP(
    embed_dim=16,
    vision_cfg=CLIPVisionCfg(layers=2, width=32, head_width=16, patch_size=8, image_size=32),
    text_cfg=CLIPTextCfg(context_length=12, vocab_size=60, width=32, heads=2, layers=2),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, texts = torch.randn(4, 3, 32, 32), torch.randint(1, 60, (4, 12))
criterion = ClipLoss()
for step in range(2):
    image, text, scale = model(images, texts)
    loss = criterion(image, text, scale)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
model.eval()
with torch.no_grad():
    print((model.encode_image(images, True) @ model.encode_text(texts, True).T).softmax(-1))
