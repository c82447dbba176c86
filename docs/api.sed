# A header's plain comments as Doxygen reads them: the first is the file's, one after code belongs to the
# declaration before it, any other to what follows. A heading over several declarations, "/* -- Leaves -- */", stays.
\,^/\* -- ,b
1s,^/\*,/** \\file \\ilinebr,
s,^( *)/\* ,\1/** ,
s,([^ ] +)/\* ,\1/**< ,
/^#/!s,<([a-z_]+)>,\\<\1\\>,g
