"""The user's Python files: how they are imported, each folder with modules of its own, and how their errors are told.

Python keeps one module for each name in a process. With a ``helper.py`` in two folders the second model would compute
with the first one's, and after an edit with what was there before. So:

- **An import is answered by where it stands.** Python looks ``__import__`` up among the builtins of the module that
  imports, and modules of a folder have one of their own there (`folder`). It holds inside of functions, in threads and
  at any later time, and for this code only. A finder alone would not do: finders are asked for names that
  ``sys.modules`` lacks, and are not told who asks. Nor would exchanging entries of ``sys.modules`` around a call: other
  threads import too.
- **Names in ``sys.modules`` are the folder's own** (``graphspec_model_<folder>.helper``), so pickle, dataclasses,
  relative imports and ``sys.modules[__name__]`` work as they are (`finder`).
- **Source is compiled, always** (`loaders`). Bytecode is found by a time and a size, which a quick edit leaves alone.
- **What the program itself imports from that very file is shared**, while the file says what it said then (`program`):
  a context that the program sets in ``context.py`` is the one the model reads.
- **Folders** inside of or around its own that a model file puts on ``sys.path`` are searched for its own modules too,
  and are taken off the path again (`search`).
- **Libraries** that look a file up by its bare name, as unpickling does, find it while the folder's code is imported or
  builds a model.

As in the folder of a script, files beside the model come before installed packages and after built-in modules. A model
file is executed once for each opening; the modules it imports serve every opening until a file of the folder changes,
so that what they register with torch or transformers is registered once.
"""
