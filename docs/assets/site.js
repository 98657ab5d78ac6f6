// Names and keyboard access for parts that the theme adds while the page loads.
function label() {
  const search = document.querySelector(".md-search[role=dialog]");
  if (search) search.setAttribute("aria-label", "Search");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    table.tabIndex = 0; // a wide table is scrolled with the arrow keys
  }
  for (const buttons of document.querySelectorAll(".md-code__nav:not([role])")) {
    buttons.setAttribute("role", "none");
  }
  for (const menu of document.querySelectorAll(".md-nav[aria-labelledby]")) {
    // the title of a section that has a page of its own is outside of its label
    const title = menu.parentElement.querySelector(".md-nav__link");
    menu.removeAttribute("aria-labelledby");
    menu.setAttribute("aria-label", title ? title.textContent.trim() : "Pages");
  }
}

label();
new MutationObserver(label).observe(document.body, { childList: true, subtree: true });
