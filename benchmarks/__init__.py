"""One file per `./dev bench NAME`: a table beside its baseline, and bars that must hold."""
