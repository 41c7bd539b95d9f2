-- The channels that users subscribe to. Run schema.sql first. This script can be run again.
--
-- Seven repetitive channels run a function once per period, and subscribers get its whole answer.
-- Seven continuous channels deliver each new report once, at once.

USE emergency;

// The cluster announces new results at this address. Results are stored even if no broker listens there.
CREATE BROKER Town IF NOT EXISTS AT "http://127.0.0.1:8989/announcements" WITH {"broker-type": "tocsin"};

// ---------------------------------------------------------------- once a period
// The period is the length of the function's window, so that a report that arrives in time is delivered once. A report
// that arrives later than that after its timestamp is never delivered. The continuous channels do not use timestamps.

CREATE REPETITIVE CHANNEL EmergenciesOfType IF NOT EXISTS USING emergenciesOfType@1 PERIOD duration("PT10S");
CREATE REPETITIVE CHANNEL EmergenciesAt IF NOT EXISTS USING emergenciesAt@2 PERIOD duration("PT20S");
CREATE REPETITIVE CHANNEL EmergenciesOfTypeAt IF NOT EXISTS USING emergenciesOfTypeAt@3 PERIOD duration("PT30S");
CREATE REPETITIVE CHANNEL EmergenciesOfTypeAtWithShelters IF NOT EXISTS
    USING emergenciesOfTypeAtWithShelters@3 PERIOD duration("PT60S");
CREATE REPETITIVE CHANNEL EmergenciesNearUser IF NOT EXISTS USING emergenciesNearUser@1 PERIOD duration("PT10S");
CREATE REPETITIVE CHANNEL EmergenciesOfTypeNearUser IF NOT EXISTS
    USING emergenciesOfTypeNearUser@2 PERIOD duration("PT10S");
CREATE REPETITIVE CHANNEL EmergenciesOfTypeNearUserWithShelters IF NOT EXISTS
    USING emergenciesOfTypeNearUserWithShelters@2 PERIOD duration("PT10S");

// ---------------------------------------------------------------- at once, and once
// is_new(r) holds for records that were committed since the channel's last execution, with any timestamp.

CREATE CONTINUOUS CHANNEL NewEmergenciesOfType(emergencyType) IF NOT EXISTS {
    SELECT r AS report
    FROM Reports AS r
    WHERE is_new(r) AND r.emergencyType = emergencyType
};

CREATE CONTINUOUS CHANNEL NewEmergenciesAt(latitude, longitude) IF NOT EXISTS {
    SELECT r AS report
    FROM Reports AS r
    WHERE is_new(r) AND geo_intersect(r.impactZone, create_point(latitude, longitude))
};

CREATE CONTINUOUS CHANNEL NewEmergenciesOfTypeAt(emergencyType, latitude, longitude) IF NOT EXISTS {
    SELECT r AS report
    FROM Reports AS r
    WHERE is_new(r)
      AND r.emergencyType = emergencyType
      AND geo_intersect(r.impactZone, create_point(latitude, longitude))
};

CREATE CONTINUOUS CHANNEL NewEmergenciesOfTypeAtWithShelters(emergencyType, latitude, longitude) IF NOT EXISTS {
    SELECT r AS report, shelters AS shelters
    FROM Reports AS r
    LET shelters = (SELECT VALUE s FROM Shelters AS s WHERE geo_intersect(r.impactZone, s.location))
    WHERE is_new(r)
      AND r.emergencyType = emergencyType
      AND geo_intersect(r.impactZone, create_point(latitude, longitude))
};

// Finds users who are in the zone when the report comes, or were in the minute before; not those who enter it later.
CREATE CONTINUOUS CHANNEL NewEmergenciesNearUser(userName) IF NOT EXISTS {
    SELECT r AS report
    FROM Reports AS r, UserLocations AS l
    WHERE is_new(r)
      AND l.timestamp > current_datetime() - duration("PT60S")
      AND l.userName = userName
      AND geo_intersect(r.impactZone, l.place)
};

CREATE CONTINUOUS CHANNEL NewEmergenciesOfTypeNearUser(emergencyType, userName) IF NOT EXISTS {
    SELECT r AS report
    FROM Reports AS r, UserLocations AS l
    WHERE is_new(r)
      AND l.timestamp > current_datetime() - duration("PT60S")
      AND r.emergencyType = emergencyType
      AND l.userName = userName
      AND geo_intersect(r.impactZone, l.place)
};

CREATE CONTINUOUS CHANNEL NewEmergenciesOfTypeNearUserWithShelters(emergencyType, userName) IF NOT EXISTS {
    SELECT r AS report, shelters AS shelters
    FROM Reports AS r, UserLocations AS l
    LET shelters = (SELECT VALUE s FROM Shelters AS s WHERE geo_intersect(r.impactZone, s.location))
    WHERE is_new(r)
      AND l.timestamp > current_datetime() - duration("PT60S")
      AND r.emergencyType = emergencyType
      AND l.userName = userName
      AND geo_intersect(r.impactZone, l.place)
};
