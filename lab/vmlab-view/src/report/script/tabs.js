// Shows one section of a page at a time, by a bar of tabs. On paper, and without a script, all are there.

for (const bar of document.querySelectorAll("[role=tablist]")) {
  const tabs = [...bar.querySelectorAll("[role=tab]")];
  const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
  const show = (at) => {
    tabs.forEach((tab, nth) => {
      tab.setAttribute("aria-selected", nth === at);
      tab.tabIndex = nth === at ? 0 : -1;
      panels[nth].classList.toggle("shown", nth === at);
    });
    const [tab, room] = [tabs[at].offsetLeft, bar.clientWidth];
    if (tab < bar.scrollLeft || tab + tabs[at].offsetWidth > bar.scrollLeft + room) bar.scrollLeft = tab - room / 3;
  };
  const choose = (at) => {
    show(at);
    history.replaceState(null, "", tabs[at].hash);
    // The section begins below the bar, which stays in view.
    const begins = panels[at].offsetTop - bar.offsetHeight;
    if (scrollY > begins) scrollTo(0, begins);
  };
  const follow = () => {
    const wanted = document.getElementById(location.hash.slice(1));
    const at = panels.findIndex((panel) => wanted && panel.contains(wanted));
    if (at >= 0) {
      show(at);
      wanted.scrollIntoView();
    }
  };
  tabs.forEach((tab, at) => tab.addEventListener("click", (event) => {
    event.preventDefault();
    choose(at);
  }));
  bar.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement), last = tabs.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    choose(to);
    tabs[to].focus();
  });
  document.body.classList.add("tabbed");
  show(0);
  addEventListener("hashchange", follow);
  follow();
}
