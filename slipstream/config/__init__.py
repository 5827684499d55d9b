"""What a run is: one frozen tree of settings, recipes that fill it, and the check that judges it whole."""
