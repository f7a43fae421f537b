// What the theme leaves out for those who read by ear or move by keyboard.
function helpReaders() {
  const names = { ".sidebar-drawer": "Pages", ".toc-drawer": "On this page" };
  for (const [place, name] of Object.entries(names)) document.querySelector(place)?.setAttribute("aria-label", name);
  for (const box of document.querySelectorAll("pre, .table-wrapper, dt.sig")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", helpReaders);
addEventListener("resize", helpReaders);
