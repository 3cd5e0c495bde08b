// Draws the SVG picture that the server made onto a canvas and saves it as PNG, at most 8192 pixels wide or high.
const [svg] = source.data.svg;
const failed = () => window.alert("This browser could not draw the picture. Save it as SVG instead.");
const picture = new Image();
picture.onerror = failed;
picture.onload = () => {
  const scale = Math.min(2, 8192 / Math.max(picture.width, picture.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => {
    if (!blob) { failed(); return; }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = "graph.png";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }, "image/png");
};
picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
