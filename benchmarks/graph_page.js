// What the benchmark asks a page of the dashboard: is it drawn, where to click, how long did the answer take?
window.graphPage = {
  models() {
    return [...(window.Bokeh?.documents[0]?._all_models.values() ?? [])];
  },
  figure() {
    return this.models().find((model) => model.type === "Figure" && model.tags.length === 5);
  },
  boxes() {
    return this.models().find((model) => model.data && model.data.sublabel_y);
  },
  graphDrawn() {
    const fig = this.figure(), boxes = this.boxes();
    const laid = fig && !fig.properties.inner_width.is_unset && fig.inner_width > 0;
    return Boolean(laid && boxes && fig.tags[0] > 0 && boxes.data.x.length);
  },
  scheduleDrawn() {
    return this.models().some((model) => model.data?.took?.length > 0);
  },
  nextFrame() {
    return new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))));
  },
  // A group has opened when other boxes are there; of an op the border changes.
  watchClick(group) {
    const boxes = this.boxes(), before = boxes.data.item;
    const answered = () => group ? boxes.data.item.length !== before.length : boxes.data.item !== before;
    let began;
    window.addEventListener("pointerdown", () => { began = performance.now(); }, { capture: true, once: true });
    this.clicked = new Promise((done) => {
      const look = () => began !== undefined && answered()
        ? this.nextFrame().then((ended) => done(ended - began))
        : setTimeout(look, 2);
      look();
    });
  },
  canvas(root = document) {
    for (const element of root.querySelectorAll("*")) {
      if (!element.shadowRoot) continue;
      const own = element.shadowRoot.querySelector("canvas");
      const found = own && own.getBoundingClientRect().height > 300 ? own : this.canvas(element.shadowRoot);
      if (found) return found;
    }
    return null;
  },
  // The folded group in view that is nearest to the middle, or an op where there is none.
  spot() {
    const fig = this.figure(), data = this.boxes().data, area = this.canvas().getBoundingClientRect();
    const [w, h] = [fig.inner_width, fig.inner_height];
    const left = area.left + (area.width - w) / 2, top = area.top + (area.height - h) / 2;
    const bottom = Math.min(top + h, window.innerHeight);
    const near = (spot) => Math.hypot(spot.x - left - w / 2, spot.y - top - h / 2);
    return data.x.map((x, index) => ({
      group: data.label[index].startsWith("▸"),
      x: left + (w * (x - fig.x_range.start)) / (fig.x_range.end - fig.x_range.start),
      y: top + (h * (data.y[index] - fig.y_range.end)) / (fig.y_range.start - fig.y_range.end),
    })).filter((spot) => spot.y > top + 10 && spot.y < bottom - 10 && spot.x > left && spot.x < left + w)
      .sort((one, other) => other.group - one.group || near(one) - near(other))[0] ?? null;
  },
};
