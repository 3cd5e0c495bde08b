// Keeps one unit of the drawing square on the screen and the labels in proportion to their boxes.
// `fig.tags` is [width, height, serial, focus_x, focus_y]; a new serial asks for the whole drawing or, with a focus, that spot.
const [width, height, serial, focusX, focusY] = fig.tags;
const sides = ["inner_width", "inner_height"].map((name) => fig.properties[name]);
const [w, h] = sides.map((side) => side.is_unset ? 0 : side.get_value()); // none before it is laid out
if (w > 0 && h > 0 && width > 0) {
  const known = fig.__djinn ?? { serial: null, w: 0, h: 0 };
  const x = fig.x_range, y = fig.y_range;
  const set = (scale, cx, top) => {
    x.setv({ start: cx - w / scale / 2, end: cx + w / scale / 2 });
    y.setv({ start: top + h / scale, end: top });
  };
  if (known.serial !== serial) {
    fig.__djinn = { serial, w, h };
    const whole = Math.min((w - 30) / width, (h - 30) / height, 1.15);
    const scale = Math.max(whole, Math.min(0.78, (w - 30) / width));
    if (focusX !== null && focusX !== undefined && known.serial !== null) {
      const now = w / (x.end - x.start);
      set(now, focusX, focusY - h / now / 2);
    } else if (scale > whole) {
      set(scale, width / 2, -14 / scale);
    } else {
      set(scale, width / 2, height / 2 - h / scale / 2);
    }
  } else if (known.w !== w || known.h !== h) {
    const scale = known.w / (x.end - x.start);
    fig.__djinn = { serial, w, h };
    set(scale, (x.start + x.end) / 2, y.end);
  }
}
const unit = w / (fig.x_range.end - fig.x_range.start);
const size = (base) => ({ value: `${Math.max(1, Math.min(15, base * unit)).toFixed(1)}px` });
const alpha = { value: 12.5 * unit < 4.5 ? 0 : 1 };
for (const [glyph, base] of [[label, 12.5], [sublabel, 10.5], [header, 12.5], [count, 10.5]]) {
  glyph.text_font_size = size(base);
  glyph.text_alpha = alpha;
}
