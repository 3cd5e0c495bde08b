// Tabs of the sections of one page. One tab is in the tab order; the arrow keys, Home and End go to the others.
export function render({ model }) {
  const tabs = document.createElement("div");
  tabs.className = "tabs";
  tabs.setAttribute("role", "tablist");

  function draw() {
    const focused = tabs.contains(tabs.getRootNode().activeElement);
    tabs.setAttribute("aria-label", model.label);
    tabs.replaceChildren(...model.sections.map(([name, label]) => {
      const tab = document.createElement("button");
      const on = name === model.active;
      tab.type = "button";
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", on);
      tab.tabIndex = on ? 0 : -1;
      tab.className = on ? "on" : "";
      tab.textContent = label;
      tab.addEventListener("click", () => { model.active = name; });
      tab.addEventListener("keydown", (event) => {
        const all = [...tabs.children], here = all.indexOf(tab);
        const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        const next = all[(to + all.length) % all.length];
        next.focus();
        next.click();
      });
      return tab;
    }));
    if (focused) tabs.querySelector(".on")?.focus();
  }
  model.on("active", draw);
  model.on("sections", draw);
  draw();
  return tabs;
}
