IS_OURS = True
