"""The vocabulary: each English word and its only French translation in the book.

Tables of text, entries divided by semicolons. A noun is `english[/plural] = french gender[/plural]`, a verb
`english [past [participle]] = french : classes of its objects`, an adjective `english = masculine
[feminine [before a vowel]]`. An underscore stands for a space. Tables are semantic classes; the
constructions refer to classes, so that people eat apples and read letters, not the reverse.
"""

from __future__ import annotations

# Nouns, countable unless the class is in MASS.
NOUNS = {
    "animal": """
        dog = chien m; cat = chat m; horse = cheval m; bird = oiseau m; cow = vache f; pig = cochon m; rabbit = lapin m;
        mouse/mice = souris f; wolf/wolves = loup m; bear = ours m; lion = lion m; elephant = éléphant m; monkey = singe m;
        goat = chèvre f; duck = canard m; hen = poule f; frog = grenouille f; snake = serpent m; bee = abeille f;
        butterfly = papillon m; spider = araignée f; fox = renard m; turtle = tortue f; donkey = âne m; owl = hibou m;
        squirrel = écureuil m; giraffe = girafe f; whale = baleine f
    """,
    "profession": """
        teacher = professeur m professeure; doctor = médecin m médecin; baker = boulanger m boulangère;
        farmer = agriculteur m agricultrice; lawyer = avocat m avocate; nurse = infirmier m infirmière;
        singer = chanteur m chanteuse; actor = acteur m actrice; writer = écrivain m écrivaine;
        journalist = journaliste m journaliste; student = étudiant m étudiante; cook = cuisinier m cuisinière;
        engineer = ingénieur m ingénieure; artist = artiste m artiste; dentist = dentiste m dentiste;
        pilot = pilote m pilote; musician = musicien m musicienne; soldier = soldat m soldate;
        secretary = secrétaire m secrétaire; butcher = boucher m bouchère; mechanic = mécanicien m mécanicienne;
        architect = architecte m architecte; hairdresser = coiffeur m coiffeuse; gardener = jardinier m jardinière;
        dancer = danseur m danseuse; judge = juge m juge
    """,
    "family": """
        brother = frère m; sister = sœur f; father = père m; mother = mère f; son = fils m; daughter = fille f;
        uncle = oncle m; aunt = tante f; grandfather = grand-père m; grandmother = grand-mère f; husband = mari m;
        wife/wives = femme f; nephew = neveu m; niece = nièce f; friend = ami m; neighbour = voisin m
    """,
    "person": """
        man/men = homme m; woman/women = femme f; boy = garçon m; girl = fille f; child/children = enfant m; baby = bébé m;
        king = roi m; queen = reine f; prince = prince m; princess = princesse f
    """,
    "fruit": """
        apple = pomme f; pear = poire f; banana = banane f; orange = orange f; lemon = citron m; strawberry = fraise f;
        cherry = cerise f; peach = pêche f; tomato = tomate f; potato = pomme_de_terre f; carrot = carotte f;
        onion = oignon m; mushroom = champignon m; pineapple = ananas m; bean = haricot m
    """,
    "snack": """
        egg = œuf m; cake = gâteau m; sandwich = sandwich m; biscuit = biscuit m; pancake = crêpe f; sausage = saucisse f
    """,
    "food": """
        bread = pain m; meat = viande f; fish = poisson m; cheese = fromage m; rice = riz m; butter = beurre m;
        soup = soupe f; chocolate = chocolat m; ham = jambon m; sugar = sucre m; honey = miel m; jam = confiture f;
        salad = salade f; chicken = poulet m; ice_cream = glace f; garlic = ail m; cream = crème f
    """,
    "drink": """
        water = eau f; milk = lait m; coffee = café m; tea = thé m; wine = vin m; beer = bière f; lemonade = limonade f;
        orange_juice = jus_d'orange m; cider = cidre m
    """,
    "text": """
        book = livre m; newspaper = journal m; letter = lettre f; magazine = magazine m; novel = roman m; poem = poème m;
        message = message m; story = histoire f; article = article m; report = rapport m;
        postcard = carte_postale f/cartes_postales
    """,
    "spectacle": """
        film = film m; match = match m; concert = concert m; opera = opéra m; programme = émission f
    """,
    "clothing": """
        shirt = chemise f; dress = robe f; skirt = jupe f; coat = manteau m; hat = chapeau m; jacket = veste f;
        scarf/scarves = écharpe f; sweater = pull m; suit = costume m; tie = cravate f; belt = ceinture f; cap = casquette f;
        uniform = uniforme m; raincoat = imperméable m; ring = bague f; watch = montre f
    """,
    "pair": "shoe = chaussure f; boot = botte f; sock = chaussette f; glove = gant m; slipper = pantoufle f",
    "vehicle": """
        car = voiture f; lorry = camion m; bus = bus m; taxi = taxi m; tractor = tracteur m; van = camionnette f
    """,
    "craft": "bicycle = vélo m; train = train m; boat = bateau m; plane = avion m; motorbike = moto f",
    "furniture": """
        table = table f; chair = chaise f; bed = lit m; armchair = fauteuil m; cupboard = placard m; shelf/shelves = étagère f;
        desk = bureau m; sofa = canapé m; carpet = tapis m; fridge = frigo m; drawer = tiroir m
    """,
    "object": """
        key = clé f; bag = sac m; pen = stylo m; pencil = crayon m; box = boîte f; bottle = bouteille f; glass = verre m;
        cup = tasse f; plate = assiette f; knife/knives = couteau m; fork = fourchette f; spoon = cuillère f;
        umbrella = parapluie m; phone = téléphone m; computer = ordinateur m; picture = tableau m; photo = photo f;
        ball = balle f; toy = jouet m; doll = poupée f; suitcase = valise f; basket = panier m; ticket = billet m;
        present = cadeau m; stamp = timbre m; map = carte f; candle = bougie f; pillow = oreiller m; blanket = couverture f;
        towel = serviette f; hammer = marteau m; ladder = échelle f; rope = corde f; flag = drapeau m;
        wallet = portefeuille m; bucket = seau m; broom = balai m; lamp = lampe f; mirror = miroir m; clock = horloge f;
        dictionary = dictionnaire m
    """,
    "instrument": """
        piano = piano m; guitar = guitare f; violin = violon m; flute = flûte f; trumpet = trompette f; harp = harpe f;
        accordion = accordéon m; cello = violoncelle m; clarinet = clarinette f
    """,
    "opening": "door = porte f; window = fenêtre f; gate = portail m; curtain = rideau m; shop = magasin m",
    "plant": "tree = arbre m; flower = fleur f; rose = rose f; tulip = tulipe f; leaf/leaves = feuille f",
    "room": """
        kitchen = cuisine f; bedroom = chambre f; living_room = salon m; bathroom = salle_de_bains f; cellar = cave f;
        attic = grenier m; garage = garage m; classroom = salle_de_classe f; corridor = couloir m; office = bureau m
    """,
    "outdoors": """
        garden = jardin m; park = parc m; forest = forêt f; street = rue f; field = champ m; courtyard = cour f;
        village = village m; town = ville f
    """,
    "sight": """
        museum = musée m; castle = château m; church = église f; cathedral = cathédrale f; palace = palais m; zoo = zoo m;
        tower = tour f; island = île f
    """,
    "building": """
        market = marché m; school = école f; station = gare f; restaurant = restaurant m; hotel = hôtel m;
        hospital = hôpital m; library = bibliothèque f; bank = banque f; cinema = cinéma m; theatre = théâtre m;
        airport = aéroport m; university = université f; supermarket = supermarché m; swimming_pool = piscine f;
        post_office = poste f; factory = usine f; stadium = stade m; pharmacy = pharmacie f; bakery = boulangerie f;
        farm = ferme f
    """,
    "home": "house = maison f; flat = appartement m; bridge = pont m; wall = mur m",
    "body": """
        head = tête f; arm = bras m; leg = jambe f; back = dos m; stomach/stomachs = ventre m; knee = genou m; hand = main f;
        throat = gorge f; foot/feet = pied m; shoulder = épaule f; ear = oreille f; finger = doigt m; neck = cou m;
        eye = œil m/yeux; tooth/teeth = dent f
    """,
    "sport": """
        football = football m; tennis = tennis m; rugby = rugby m; basketball = basket m; golf = golf m; hockey = hockey m;
        handball = handball m; volleyball = volley m
    """,
    "language": """
        French = français m; English = anglais m; Spanish = espagnol m; Italian = italien m; German = allemand m;
        Russian = russe m; Chinese = chinois m; Japanese = japonais m; Arabic = arabe m; Portuguese = portugais m;
        Dutch = néerlandais m; Greek = grec m; Turkish = turc m
    """,
    "pleasure": """
        music = musique f; winter = hiver m; summer = été m; snow = neige f; rain = pluie f; nature = nature f;
        poetry = poésie f; silence = silence m; jazz = jazz m; chemistry = chimie f; history = histoire f; art = art m
    """,
    "country": """
        France = France f; Italy = Italie f; Spain = Espagne f; Germany = Allemagne f; England = Angleterre f;
        Switzerland = Suisse f; Belgium = Belgique f; China = Chine f; Russia = Russie f; Greece = Grèce f;
        Ireland = Irlande f; Scotland = Écosse f; Canada = Canada m; Japan = Japon m; Portugal = Portugal m;
        Mexico = Mexique m; Brazil = Brésil m; Morocco = Maroc m
    """,
    "city": """
        Paris = Paris m; London = Londres m; Rome = Rome f; Berlin = Berlin m; Lyon = Lyon m; Brussels = Bruxelles f;
        Geneva = Genève f; Lisbon = Lisbonne f; Venice = Venise f; Vienna = Vienne f; Moscow = Moscou f; Athens = Athènes f
    """,
}
MASS = ("food", "drink", "sport", "language", "pleasure", "country", "city")

# Classes of objects of verbs, across the classes above.
ALSO = {
    "writable": "letter poem book novel message story article report postcard",
    "drawable": "dog cat horse bird rabbit elephant tree flower house boat car castle monkey fox butterfly",
    "fillable": "bottle glass cup box bag bucket basket",
    "breakable": "bottle glass cup plate mirror window lamp clock chair",
    "openable": "door window gate box bottle suitcase cupboard drawer shop present letter book umbrella bag",
    "washable": "shirt dress skirt coat sweater sock apple pear carrot potato plate cup glass fork spoon window car dog horse",
    "buildable": "house bridge wall boat castle tower church school hospital hotel",
    "paintable": "wall door house chair table boat bedroom kitchen gate",
    "mended": "car bicycle bus motorbike tractor boat computer phone clock watch chair door lamp",
    "cuttable": "bread meat cheese cake apple tomato onion carrot lemon pear rope sausage",
    "cookable": "soup fish chicken salad sandwich pancake rice meat cake",
    "carryable": "bag suitcase box basket bucket ladder table chair flag umbrella plate",
    "sendable": "letter message postcard present photo report book",
    "ridden": "train bus taxi plane boat key umbrella bag",
    "plantable": "tree flower rose tulip",
    "caught": "ball mouse rabbit frog butterfly snake fish train bus",
    "fed": "dog cat horse hen pig duck rabbit baby bird",
    "crossed": "street bridge field forest park garden courtyard",
    "pushed": "door chair table car bicycle box",
    "surface": "table bed chair desk sofa carpet shelf armchair",
    "inside": "box bag basket drawer cupboard suitcase fridge kitchen bedroom cellar garage",
    "portable": "key book pen pencil letter phone hat glass cup ball plate photo ticket map umbrella newspaper candle",
}

# Verbs and the classes of their objects; "-" is none.
VERBS = {
    # actions: have a progressive form
    "deed": """
        eat ate eaten = manger : fruit snack food; drink drank drunk = boire : drink; read read = lire : text;
        write wrote written = écrire : writable; wear wore worn = porter : clothing; buy bought = acheter : fruit snack food
        clothing furniture object vehicle house; sell sold = vendre : furniture object vehicle house;
        look_for = chercher : object clothing animal; wash = laver : washable; clean = nettoyer : room vehicle furniture;
        repair = réparer : mended; paint = peindre : paintable; open = ouvrir : openable; close = fermer : openable;
        visit = visiter : sight town village museum; drive drove driven = conduire : vehicle; prepare = préparer : cookable;
        cut cut = couper : cuttable; help = aider : family person profession; call = appeler : family profession;
        invite = inviter : family profession person; thank = remercier : family profession;
        wait_for = attendre : family profession bus train taxi plane; follow = suivre : person animal vehicle profession;
        listen_to = écouter : singer teacher concert opera; watch = regarder : spectacle bird;
        choose chose chosen = choisir : clothing text furniture present; finish = finir : text cake soup;
        fill = remplir : fillable; build built = construire : buildable; carry = porter : carryable;
        bring brought = apporter : drink snack food flower key present; take took taken = prendre : ridden;
        send sent = envoyer : sendable; learn = apprendre : language; study = étudier : language chemistry history poetry art;
        draw drew drawn = dessiner : drawable; push = pousser : pushed; feed fed = nourrir : fed; rent = louer : car bicycle
        house flat boat; translate = traduire : text; plant = planter : plantable; catch caught = attraper : caught;
        cross = traverser : crossed; admire = admirer : sight picture flower garden dancer; burn = brûler : letter photo report
        map newspaper; punish = punir : child son daughter student soldier
    """,
    # events: have a past, but no progressive form
    "event": """
        see saw seen = voir : animal sight person spectacle; find found = trouver : object clothing pair;
        lose lost = perdre : object clothing match; forget forgot forgotten = oublier : key umbrella ticket map hat phone bag
        wallet book; receive = recevoir : sendable; break broke broken = casser : breakable; hear heard = entendre : animal
        child singer concert; meet met = rencontrer : profession family king queen; understand understood = comprendre :
        text teacher language; sweep swept = balayer : room courtyard; hide hid hidden = cacher : key present letter photo box
    """,
    # states
    "feeling": "love = aimer : -; hate = détester : -; like = aimer : -; adore = adorer : -; prefer = préférer : -",
    "state": "have had = avoir : -; want = vouloir : -; know knew known = connaître : -; need = avoir_besoin : -",
    "act": """
        sleep slept = dormir : -; run ran run = courir : -; work = travailler : -; sing sang sung = chanter : -; dance = danser : -;
        walk = marcher : -; laugh = rire : -; cry = pleurer : -; swim swam swum = nager : -; travel = voyager : -;
        smile = sourire : -; cook = cuisiner : -; shout = crier : -; snore = ronfler : -; cough = tousser : -; talk = parler : -;
        think thought = réfléchir : -; jump = sauter : -; tremble = trembler : -; dream = rêver : -; lie lied = mentir : -
    """,
    "move": """
        arrive = arriver : -; leave left = partir : -; come came come = venir : -; go_out went gone = sortir : -;
        come_back came come = revenir : -; go_home went gone = rentrer : -
    """,
    "stay": "stay = rester : -; fall fell fallen = tomber : -",
    "other": """
        be was been = être : -; go went gone = aller : -; play = jouer : -; speak spoke spoken = parler : -; live = habiter : -;
        give gave given = donner : -; show showed shown = montrer : -; lend lent = prêter : -; put put = mettre : -
    """,
}

# + precedes the noun.
ADJECTIVES = {
    "size": "+big = grand; +small = petit",
    "age": "+new = nouveau nouvelle nouvel; +old = vieux vieille vieil",
    "beauty": "+beautiful = beau belle bel; +pretty = joli",
    "worth": "+good = bon; +bad = mauvais",
    "colour": """
        red = rouge; blue = bleu; green = vert; black = noir; white = blanc blanche; yellow = jaune; grey = gris; brown = brun;
        pink = rose; purple = violet violette
    """,
    "price": "expensive = cher",
    "use": "useful = utile",
    "cleanness": "clean = propre; dirty = sale",
    "fashion": "modern = moderne",
    "elegance": "elegant = élégant",
    "load": "heavy = lourd; light = léger; full = plein; empty = vide; broken = cassé; round = rond; square = carré",
    "taste": "delicious = délicieux; hot = chaud; cold = froid",
    "sweetness": "sweet = sucré",
    "freshness": "fresh = frais fraîche",
    "style": """
        interesting = intéressant; boring = ennuyeux; important = important; funny = drôle; +long = long longue
    """,
    "difficulty": "difficult = difficile; easy = facile",
    "place": "quiet = calme; noisy = bruyant; famous = célèbre; dark = sombre",
    "danger": "dangerous = dangereux",
    "speed": "fast = rapide; slow = lent",
    "character": """
        rich = riche; poor = pauvre; polite = poli; kind = gentil; intelligent = intelligent; strong = fort; weak = faible;
        generous = généreux; lazy = paresseux; brave = courageux; honest = honnête; jealous = jaloux jalouse; shy = timide;
        curious = curieux; patient = patient; serious = sérieux; proud = fier; +young = jeune
    """,
    "mood": """
        tired = fatigué; happy = heureux; sad = triste; ill = malade; ready = prêt; busy = occupé; alone = seul;
        nervous = nerveux; worried = inquiet inquiète; surprised = surpris; disappointed = déçu
    """,
}
DESCRIBES = {
    "size": "animal clothing vehicle craft furniture object sight building room home plant outdoors fruit snack",
    "age": "clothing pair vehicle craft furniture object instrument home building sight",
    "beauty": "animal clothing vehicle craft furniture instrument plant outdoors sight home",
    "worth": "text spectacle restaurant hotel school",
    "colour": "clothing pair vehicle craft furniture flower rose tulip bird cat door curtain bag pen pencil box umbrella towel",
    "price": "clothing vehicle craft computer phone instrument furniture",
    "use": "computer phone umbrella map bicycle car dictionary knife hammer ladder bag broom lamp book",
    "cleanness": "clothing vehicle room hotel restaurant plate cup glass towel fork spoon",
    "fashion": "vehicle kitchen bathroom hotel restaurant office school station hospital library house flat",
    "elegance": "clothing hotel restaurant",
    "load": "box suitcase bottle glass cup basket bucket plate",
    "taste": "soup meat fish rice chicken coffee tea milk water cake pancake sausage potato chocolate",
    "sweetness": "coffee tea orange_juice lemonade cake biscuit pancake jam chocolate pear peach cherry ice_cream",
    "freshness": "bread fish milk egg salad butter cream cheese fruit",
    "style": "text spectacle",
    "difficulty": "book poem novel article report match",
    "place": "outdoors restaurant hotel library",
    "danger": "wolf bear lion elephant snake bee spider dog fox whale monkey street forest",
    "speed": "horse dog cat rabbit turtle donkey fox elephant bird vehicle craft",
    "character": "profession person",
    "mood": "family person profession",
}

NAMES = (
    "Marie f; Paul m; Anne f; Pierre m; Julie f; Thomas m; Claire f; Lucas m; Sophie f; Antoine m"
)

# Fixed expressions, English = French.
ADVERBS = {
    "often": "often = souvent; always = toujours; sometimes = parfois; rarely = rarement; still = encore",
    "manner": "well = bien; badly = mal; very well = très bien",
    "amount": "a lot = beaucoup; too much = trop; a little = un peu",
    "ago": """
        yesterday = hier; last night = hier soir; last week = la semaine dernière; last month = le mois dernier;
        last year = l'année dernière; this morning = ce matin; two days ago = il y a deux jours; on Monday = lundi
    """,
    "soon": """
        tomorrow = demain; next week = la semaine prochaine; next month = le mois prochain; next year = l'année prochaine;
        tonight = ce soir; in an hour = dans une heure; next summer = l'été prochain
    """,
    "custom": """
        every day = tous les jours; every morning = tous les matins; every evening = tous les soirs; on Mondays = le lundi;
        on Saturdays = le samedi; on Sundays = le dimanche; in winter = en hiver; in summer = en été
    """,
    "jointly": "together = ensemble",
    "now": "now = maintenant; today = aujourd'hui; at the moment = en ce moment",
    "where": "on = sur; under = sous; behind = derrière; in front of = devant; next to = à côté de; near = près de",
    "degree": "very = très; too = trop; quite = assez; really = vraiment",
    "feel": """
        hungry = faim; thirsty = soif; cold = froid; hot = chaud; afraid = peur; right = raison; wrong = tort; sleepy = sommeil
    """,
    "weather": """
        raining = pleut; snowing = neige; cold = fait froid; hot = fait chaud; mild = fait doux;
        cool = fait frais; windy = fait du vent
    """,
    "weekday": """
        Monday = lundi; Tuesday = mardi; Wednesday = mercredi; Thursday = jeudi; Friday = vendredi; Saturday = samedi;
        Sunday = dimanche
    """,
    "measure": """
        a glass of = un verre de; a bottle of = une bouteille de; a cup of = une tasse de; a little = un peu de;
        a lot of = beaucoup de; too much = trop de; enough = assez de
    """,
    "number": """
        two = deux; three = trois; four = quatre; five = cinq; six = six; seven = sept; eight = huit; nine = neuf; ten = dix;
        eleven = onze; twelve = douze; thirteen = treize; fourteen = quatorze; fifteen = quinze; sixteen = seize;
        twenty = vingt; thirty = trente; forty = quarante; fifty = cinquante
    """,
}
