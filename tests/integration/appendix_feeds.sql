/***** Three Feeds *****/

//create feeds

create feed ReportFeed with
{
    "adapter-name": "socket_adapter",
    "sockets": "promethium.ics.uci.edu:23231",
    "address-type": "IP",
    "type-name": "EmergencyReportFeedType",
    "format": "adm"
};

create feed ShelterFeed with
{
    "adapter-name": "socket_adapter",
    "sockets": "promethium.ics.uci.edu:23232",
    "address-type": "IP",
    "type-name": "EmergencyShelterType",
    "format": "adm"
};

create feed UserLocationFeed with
{
    "adapter-name": "socket_adapter",
"sockets": "promethium.ics.uci.edu:23233",
"address-type": "IP",
"type-name": "UserLocationFeedType",
"format": "adm"
};

//connect feeds

connect feed ReportFeed to dataset EmergencyReports;
connect feed ShelterFeed to dataset EmergencyShelters;
connect feed UserLocationFeed to dataset UserLocations;

//start feeds

start feed ReportFeed;
start feed ShelterFeed;
start feed UserLocationFeed;
