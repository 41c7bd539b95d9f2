create repetitive channel warningsOfChannel using
  warningsOf@1 period duration("PT10S");
create repetitive channel warningsAtChannel using
  warningsAt@2 period duration("PT20S");
create repetitive channel warningsOfAtChannel
  using warningsOfAt@3 period duration("PT30S");

create repetitive channel warningsAroundChannel using
  warningsAround@1 period duration("PT10S");
