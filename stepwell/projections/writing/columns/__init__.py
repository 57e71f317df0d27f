"""Many records of one type at a time, as columns of numbers instead of objects.

A projector that is behind reads thousands of steps and actions at once, and Python pays for every object, not for
every byte. So those two types take a short way from the bytes of a batch to the bytes of COPY:

* `avro` reads the bodies of all records of a schema field by field, in lock-step;
* `texts` judges and compares texts eight bytes at a time;
* `guards` holds the rules of `stepwell.events.guards` as columns;
* `facts` says which columns of a table come from which fields, and `copying` packs them;
* `batch` chooses what may go this way, and gives all of it back as `ColumnRows`;
* `deltas` counts steps for the rollups.

The way record by record (`stepwell.projections.writing.rows.project`) stays the definition. Whatever is in any doubt
here goes that way: a record is taken by columns only where every field is plainly as it should be, so that both ways
give the same rows, which property tests check byte by byte. docs/decisions/0047 says why it is done like this.
"""
