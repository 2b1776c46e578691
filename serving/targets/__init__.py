"""Where releases run: one platform for each environment, behind one port."""
