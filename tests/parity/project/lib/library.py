VALUE = "library"
