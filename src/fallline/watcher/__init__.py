"""The watcher: taps on torch become events, numbers become series, and a run says where it went wrong."""

from fallline.watcher.watch import Watch, watch

__all__ = ["Watch", "watch"]
