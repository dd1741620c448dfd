// The button that changes between dark and light, and remembers it.

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

export function themeButton(button) {
  const name = () => {
    const next = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", next);
    button.title = `${next} colours`;
  };
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("quiver.theme", next);
    name();
    dispatchEvent(new Event("quiver:theme"));
  });
  name();
}
