// Runs before the first paint: the chosen theme, or the system's.
(() => {
  const chosen = localStorage.getItem("quiver.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
