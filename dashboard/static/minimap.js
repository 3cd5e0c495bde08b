// Fits the whole drawing into the small figure, and frames the part of it that the large figure shows.
// `fig.tags` begins with the width and the height of the drawing.
const [width, height] = fig.tags;
const size = ["inner_width", "inner_height"].map((name) => map.properties[name]);
const [w, h] = size.map((side) => side.is_unset ? 0 : side.get_value()); // none before it is laid out
if (w > 0 && h > 0 && width > 0 && height > 0) {
  const even = 0.94 * Math.min(w / width, h / height);
  const across = Math.min(0.94 * w / width, 5 * even); // a long narrow drawing is stretched, or it would be a line
  const down = Math.min(0.94 * h / height, 5 * even);
  const set = (range, start, end) => {
    if (range.start !== start || range.end !== end) range.setv({ start, end });
  };
  set(map.x_range, width / 2 - w / across / 2, width / 2 + w / across / 2);
  set(map.y_range, height / 2 + h / down / 2, height / 2 - h / down / 2);
}
const within = (value, one, other) => Math.max(Math.min(one, other), Math.min(Math.max(one, other), value));
view.setv({
  left: within(fig.x_range.start, map.x_range.start, map.x_range.end),
  right: within(fig.x_range.end, map.x_range.start, map.x_range.end),
  top: within(fig.y_range.end, map.y_range.start, map.y_range.end),
  bottom: within(fig.y_range.start, map.y_range.start, map.y_range.end),
});
