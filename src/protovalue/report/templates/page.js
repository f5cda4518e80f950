"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // Tables: a click on a header sorts by its column, numbers from the highest; what has no value stays last.
  const sort = (head) => {
    const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
    const numeric = head.dataset.kind === "number";
    const before = head.getAttribute("aria-sort");
    const up = before === "none" ? !numeric : before === "descending";
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
      return up ? order : -order;
    };
    for (const other of all("th[aria-sort]", table.tHead)) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...[...body.rows].sort(compare));
  };
  for (const button of all("th button")) button.addEventListener("click", () => sort(button.closest("th")));

  // Commands: copy, or select them where the browser does not let a page copy.
  const copy = async (button) => {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = document.execCommand("copy") ? "copied" : "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  };
  for (const button of all("button.copy")) button.addEventListener("click", () => copy(button));

  // A number is a link to what made it: open what is folded around and inside it.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let outer = target; outer; outer = outer.parentElement) if (outer.tagName === "DETAILS") outer.open = true;
    if (target.classList.contains("made")) for (const inner of all("details", target)) inner.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();

  // MDS explorer: one state is shown at a time, in the viewer and in every picture of its game.
  for (const explorer of all(".explorer")) {
    const { env, steps, frames } = JSON.parse(explorer.querySelector("script").textContent);
    const [image, output, slider, button] = ["img", "output", "input", "button"].map(
      (name) => explorer.querySelector(`.viewer ${name}`),
    );
    const last = frames.length - 1;
    const plots = all("svg", explorer).map((svg) => ({
      svg, ring: svg.querySelector(".here"),
      points: all("g circle", svg).map((circle) => [circle.cx.baseVal.value, circle.cy.baseVal.value]),
    }));
    const show = (state) => {
      image.src = `data:image/png;base64,${frames[state]}`;
      image.alt = `Frame of ${env} at step ${steps[state]}`;
      output.value = steps[state];
      slider.value = state;
      explorer.dataset.state = state;
      for (const { svg, ring, points } of plots) {
        ring.setAttribute("cx", points[state][0]);
        ring.setAttribute("cy", points[state][1]);
        svg.setAttribute("aria-valuenow", state);
        svg.setAttribute("aria-valuetext", `step ${steps[state]}`);
      }
    };
    let playing = 0;
    const stop = () => {
      clearInterval(playing);
      playing = 0;
      button.textContent = "play";
    };
    button.addEventListener("click", () => {
      if (playing) {
        stop();
        return;
      }
      if (Number(explorer.dataset.state) === last) show(0);
      button.textContent = "pause";
      playing = setInterval(() => {
        show(Number(explorer.dataset.state) + 1);
        if (Number(explorer.dataset.state) === last) stop();
      }, 60);
    });
    for (const { svg, points } of plots) {
      const nearest = (event) => {
        const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        const distances = points.map(([a, b]) => Math.hypot(a - x, b - y));
        show(distances.indexOf(Math.min(...distances)));
      };
      svg.addEventListener("pointermove", (event) => { if (!playing) nearest(event); });
      svg.addEventListener("pointerdown", (event) => {
        stop();
        nearest(event);
      });
      svg.addEventListener("keydown", (event) => {
        const now = Number(explorer.dataset.state);
        const next = {
          ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1,
          PageUp: now + 10, PageDown: now - 10, Home: 0, End: last,
        }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        stop();
        show(Math.max(0, Math.min(last, next)));
      });
    }
    slider.addEventListener("input", () => {
      stop();
      show(Number(slider.value));
    });
    show(0);
  }
})();
