def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew, then read the diff")
