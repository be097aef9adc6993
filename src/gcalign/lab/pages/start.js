// Everything once, and charts again whenever the width changes.

startHeat();
startMap();
startViews();
startNeighbours();
const charts = [startCurves(), startPlane()].filter(Boolean);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) charts.forEach((draw) => draw());
  width = innerWidth;
});
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", () => {
    navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "copied";
  });
}
window.gcalign = { heat, data, targetOf }; // for the console
performance.mark("ready");
