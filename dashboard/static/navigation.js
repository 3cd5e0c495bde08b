// Page tabs, and the badge that says how fresh the page is.
export function render({ model }) {
  const bar = document.createElement("div");
  bar.className = "bar";
  const tabs = document.createElement("div");
  tabs.className = "tabs";
  tabs.setAttribute("role", "tablist");
  const badge = document.createElement("div");
  badge.className = "badge";
  badge.setAttribute("role", "status");
  const theme = document.createElement("button");
  theme.className = "theme";
  bar.append(tabs, badge, theme);

  function drawTabs() {
    tabs.replaceChildren(...model.pages.map(([name, label]) => {
      const tab = document.createElement("button");
      const on = name === model.active;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", on);
      tab.className = on ? "on" : "";
      tab.textContent = label;
      tab.addEventListener("click", () => { model.active = name; });
      tab.addEventListener("keydown", (event) => {
        const to = event.key === "ArrowRight" ? tab.nextElementSibling
          : event.key === "ArrowLeft" ? tab.previousElementSibling : null;
        if (to) { to.focus(); to.click(); }
      });
      return tab;
    }));
    requestAnimationFrame(() => {
      const on = tabs.querySelector(".on");
      if (on) tabs.scrollLeft = on.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - on.offsetWidth) / 2;
    });
  }
  function drawBadge() {
    window.__djinnBeat = Date.now();
    badge.dataset.tone = model.tone;
    badge.textContent = model.status;
    badge.hidden = !model.status;
    badge.title = model.detail;
  }
  theme.textContent = model.dark ? "Light" : "Dark";
  theme.title = "Switch between light and dark";
  theme.addEventListener("click", () => {
    const query = new URLSearchParams(window.location.search);
    if (model.dark) query.delete("theme"); else query.set("theme", "dark");
    window.location.search = query.toString();
  });
  model.on("active", drawTabs);
  model.on("pages", drawTabs);
  model.on("status", drawBadge);
  model.on("tone", drawBadge);
  model.on("beat", () => { window.__djinnBeat = Date.now(); });
  drawTabs();
  drawBadge();
  document.getElementById("skeleton")?.remove();
  return bar;
}
