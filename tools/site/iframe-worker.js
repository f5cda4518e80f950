// A page that is opened from a folder may start no worker: the script of the search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.onload = () => {
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inside.document.createElement("script");
        script.src = new URL(address, location);
        script.onload = () => {
          const waiting = this.waiting;
          this.waiting = null;
          waiting.forEach((data) => this.postMessage(data));
        };
        inside.document.body.append(script);
        this.frame.onload = null;
      };
      document.body.append(this.frame);
    }
    postMessage(data) {
      const inside = this.frame.contentWindow;
      if (this.waiting) this.waiting.push(data);
      else inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
