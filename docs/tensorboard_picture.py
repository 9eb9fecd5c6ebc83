"""Make docs/tensorboard.png: a real TensorBoard, showing real runs, photographed by a headless Chromium.

python docs/tensorboard_picture.py runs        needs chromium on the PATH, for example Debian's package
"""

import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import run_script
from configs.schema import UserError


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise UserError("name the folder of the runs")
    (log_folder,) = arguments
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    program = [
        str(Path(sys.executable).parent / "tensorboard"),
        "--logdir",
        log_folder,
        "--port",
        address.rsplit(":")[-1],
    ]
    server = subprocess.Popen([*program, "--host", "127.0.0.1"], stderr=subprocess.DEVNULL)
    try:
        while not _answers(address):
            time.sleep(0.5)
        time.sleep(5)  # the runs are read after the first answer
        browser = "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1500,950".split()
        quiet = "--disable-background-networking --disable-component-update --disable-sync --no-first-run".split()
        picture = Path(__file__).with_name("tensorboard.png")
        options = [f"--screenshot={picture}", "--virtual-time-budget=60000", f"{address}/#scalars&_smoothingWeight=0"]
        subprocess.run([*browser, *quiet, *options], check=True, stderr=subprocess.DEVNULL)
    finally:
        server.terminate()
        server.wait()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/data/runs", timeout=5).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    run_script(main, __doc__)
