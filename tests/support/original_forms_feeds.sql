/***** What comes in over sockets *****/

//declared

create feed WarningFeed with
{
  "adapter-name": "socket_adapter",
  "sockets": "harbour.example:4101",
  "address-type": "IP",
  "type-name": "WarningFeedType",
  "format": "adm"
};

create feed HavenFeed with
{
  "adapter-name": "socket_adapter",
  "sockets": "harbour.example:4102",
  "address-type": "IP",
  "type-name": "HavenType",
  "format": "adm"
};

create feed SightingFeed with
{
    "adapter-name": "socket_adapter",
"sockets": "harbour.example:4103",
"address-type": "IP",
"type-name": "SightingFeedType",
"format": "adm"
};

//connected

connect feed WarningFeed to dataset Warnings;
connect feed HavenFeed to dataset Havens;
connect feed SightingFeed to dataset Sightings;

//started

start feed WarningFeed;
start feed HavenFeed;
start feed SightingFeed;
