"""A contestant that says nothing: what any other is to be held against. always_nothing.py CASE OUT"""

import contestant

if __name__ == "__main__":
    contestant.main(__doc__, "always nothing", lambda case, folder, options: [])
