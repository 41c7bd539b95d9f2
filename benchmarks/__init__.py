"""One file per `./dev bench NAME`: measures, compares with a baseline, and checks bars that must hold."""
