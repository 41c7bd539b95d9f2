create repetitive channel recentEmergenciesOfTypeChannel using
recentEmergenciesOfType@1 period duration("PT10S");
create repetitive channel recentEmergenciesAtLocationChannel using
recentEmergenciesAtLocation@2 period duration("PT20S");
create repetitive channel recentEmergenciesOfTypeAtLocationChannel
using recentEmergenciesOfTypeAtLocation@3 period duration("PT30S");

create repetitive channel recentEmergenciesNearMeChannel using
recentEmergenciesNearMe@1 period duration("PT10S");
