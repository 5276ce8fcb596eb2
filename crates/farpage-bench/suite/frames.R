# Data frames: order, aggregate, merge, strings.
n <- 800000L
i <- seq_len(n)
frame <- data.frame(key = (i * 7919) %% 50000, value = (i * 48271) %% 1000003, kind = i %% 37L)
frame$name <- paste0("name-", frame$key)
other <- data.frame(key = 0:49999, weight = (0:49999) %% 9 + 1)
both <- merge(frame, other, by = "key")
both$product <- both$value * both$weight
cat(nrow(both), format(sum(both$product), digits = 15), "\n")
groups <- tapply(both$product, both$name, sum)
cat(length(groups), format(max(groups), digits = 15), "\n")
both <- both[order(both$kind, both$value, both$key), ]
cat(format(sum(both$value * (seq_len(n) %% 97)), digits = 15), "\n")
lists <- split(both$value, both$key)
cat(length(lists), format(sum(vapply(lists, function(x) max(x) - min(x), 0)), digits = 15), "\n")
