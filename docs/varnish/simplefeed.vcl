# A cache in front of simplefeed-server: each frozen document is asked for once.
# varnishd -f /etc/varnish/simplefeed.vcl -a :80
vcl 4.1;

import std;

backend simplefeed {
    .host = "127.0.0.1";
    .port = "8080";
    # Less than the server lets a connection be idle, which is 75 s.
    .first_byte_timeout = 10s;
    .between_bytes_timeout = 10s;
    .probe = {
        .url = "/healthz";
        .interval = 2s;
    }
}

# A body is passed on once it is whole: one that breaks off in the middle, Varnish would end as if it were. Until then it
# waits in memory, which `-s Transient=malloc,256m` bounds.
sub wait_for_body {
    if (std.integer(req.http.Content-Length, 0) > 16777216) {
        return (synth(413, "Content Too Large"));
    }
    if (req.method ~ "^(POST|PUT|DELETE)$" && req.url !~ "^/ui/") {
        if (!std.cache_req_body(16MB)) {
            return (synth(400, "Bad Request"));
        }
    } else if (!std.cache_req_body(64KB)) {
        return (synth(400, "Bad Request"));
    }
}

sub vcl_recv {
    # Publishers with a token are let through; the server asks for it if it has --tokens.
    if (req.method !~ "^(GET|HEAD|OPTIONS)$" && !req.http.Authorization && req.url !~ "^/ui/") {
        return (synth(403, "Forbidden"));
    }
    if (req.restarts == 0) {
        call wait_for_body;
    }
    # Before a script of another site sends other than plain header fields, its browser asks the server.
    if (req.method == "OPTIONS") {
        return (pass);
    }
    # Pages for people: nothing of them is kept. Forms sign readers in and out; the server checks where they come from.
    if (req.url ~ "^/(ui(/[^?]*)?)?(\?|$)") {
        return (pass);
    }
    if (req.method != "GET" && req.method != "HEAD") {
        return (pass);
    }
    # Reads that wait, and streams of events: nobody waits behind them, and nothing of them is kept.
    if (req.url ~ "^/feeds/[^/?]+/(recent\.atom\?(.*&)?wait=|events(\?|$))|^/sup(-timelines)?(-closed)?\.json\?(.*&)?wait=") {
        return (pass);
    }
    # As the server answers it, also while it is away.
    if (req.url ~ "^/feeds/[^/?]+$") {
        return (synth(307, "Temporary Redirect"));
    }
    # Only these have a query; elsewhere it would only split the cache.
    if (req.url !~ "^/(feeds|sup(-timelines)?(-closed)?\.json|feeds/[^/]+/(page\.(atom|json)|rates\.json|follow(ing|ers)\.json))\?") {
        set req.url = regsub(req.url, "\?.*$", "");
    }
    # What somebody may see is not for others.
    if (req.http.Authorization) {
        return (pass);
    }
    unset req.http.Cookie;
    # Only while the server is away may old copies be shown: from the first request that it fails on, which begins anew.
    if (std.healthy(req.backend_hint) && req.restarts == 0) {
        set req.grace = 0s;
    }
    # A consumer that doubts a copy asks past us.
    if (req.http.Cache-Control ~ "no-cache" && req.restarts == 0) {
        set req.hash_always_miss = true;
    }
    return (hash);
}

sub vcl_backend_fetch {
    # More than the longest wait.
    if (bereq.url ~ "[?&]wait=") {
        set bereq.first_byte_timeout = 70s;
    }
}

sub vcl_backend_response {
    # What may be kept, and how long, is what the server says; refusals say no-store.
    if (beresp.http.Cache-Control ~ "no-store|private") {
        set beresp.uncacheable = true;
        set beresp.ttl = 0s;
        return (deliver);
    }
    # While the server is away, what was seen last is served, for a day.
    set beresp.grace = 24h;
    set beresp.keep = 24h;
    # Varnish unpacks for clients that do not take gzip; the digest is of the packed bytes.
    set beresp.http.X-Stored-Coding = beresp.http.Content-Encoding;
}

sub vcl_backend_error {
    # While the server is away: after an error, a browser would never come back to a stream.
    if (bereq.url ~ "^/feeds/[^/?]+/events(\?|$)") {
        set beresp.status = 200;
        set beresp.http.Content-Type = "text/event-stream";
        set beresp.http.Cache-Control = "no-store";
        set beresp.http.Access-Control-Allow-Origin = "*";
        synthetic({"retry: 10000

"});
        return (deliver);
    }
    # A read begins anew once, and then gets an old copy if there is one.
    set beresp.http.X-Server-Is-Away = "yes";
}

sub vcl_synth {
    if (resp.status == 307) {
        set resp.http.Location = req.url + "/recent.atom";
        set resp.http.Cache-Control = "no-store";
        set resp.http.Access-Control-Allow-Origin = "*";
        return (deliver);
    }
}

sub vcl_deliver {
    if (resp.http.X-Server-Is-Away) {
        if (req.restarts == 0 && (req.method == "GET" || req.method == "HEAD")) {
            return (restart);
        }
        unset resp.http.X-Server-Is-Away;
    }
    if (resp.http.X-Stored-Coding ~ "gzip" && req.http.Accept-Encoding !~ "gzip") {
        unset resp.http.Repr-Digest;
    }
    unset resp.http.X-Stored-Coding;
}
