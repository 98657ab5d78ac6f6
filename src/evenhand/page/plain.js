"use strict";
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const remembered = {  // a page from disk may have no storage
    get() { try { return localStorage.getItem("evenhand-theme"); } catch { return null; } },
    set(theme) { try { localStorage.setItem("evenhand-theme", theme); } catch { /* then it is chosen again next time */ } },
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const show = () => { button.textContent = isDark() ? "Light colours" : "Dark colours"; };
  const theme = remembered.get();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered.set(root.dataset.theme);
    show();
  });
  prefersDark.addEventListener("change", show);
  show();

  let folded = [];
  function forPrint(begins) {
    if (begins) {
      folded = [...document.querySelectorAll("main details:not([open])")];
      for (const part of folded) part.open = true;
    } else {
      for (const part of folded) part.open = false;
    }
  }
  window.matchMedia("print").addEventListener("change", (event) => forPrint(event.matches));
})();
