// Makes a server that names no host listen on loopback only, on a free port, and print its address.
import net from "node:net";

const { listen } = net.Server.prototype;
net.Server.prototype.listen = function (_port, ready) {
    this.once("listening", () => console.log(`http://127.0.0.1:${this.address().port}/mcp`));
    return listen.call(this, { port: 0, host: "127.0.0.1" }, ready);
};
