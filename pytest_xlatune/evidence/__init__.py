"""What the compiler did and where the time went: HLO text and traces to facts. Pure.

    xplane, tracejson   bytes of a capture -> trace.Trace
    drill               traces -> where the time of each GPU and step went
    hlo                 lines of HLO text -> what the compiler made of the program
    difference, proof   two programs -> what changed, in words; did this flag act
    render              any of these facts -> lines for people, builtins for JSON

Nothing here opens a file, reads a clock or an environment: the caller hands bytes or lines in, and
gets facts or a `ParseError` with the name that it gave.
"""
